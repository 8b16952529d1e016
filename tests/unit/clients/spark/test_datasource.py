"""What Spark finds under the name `oncemq`, and what it is refused before anything happens."""

from __future__ import annotations

import pickle

import pytest

from clients.spark.datasource import OnceMQDataSource
from clients.spark.errors import OptionError
from clients.spark.rows import BINARY_SCHEMA
from pyspark_oncemq import DefaultSource
from tests.unit.clients.spark.test_sink import ROWS


def source(**options: str) -> OnceMQDataSource:
    given = {"url": "mq://127.0.0.1:1", "queue": "q", **options}
    made = pickle.loads(pickle.dumps(OnceMQDataSource({k.lower(): v for k, v in given.items()})))
    assert isinstance(made, OnceMQDataSource)
    return made


def test_the_front_door_leads_to_the_data_source() -> None:
    assert DefaultSource is OnceMQDataSource
    assert DefaultSource.name() == "oncemq"


@pytest.mark.parametrize("options", [{}, {"consumer": "c"}, {"transaction": "t"}])
def test_the_columns_of_a_read_are_those_of_messages(options: dict[str, str]) -> None:
    assert source(**options).schema() == BINARY_SCHEMA


def test_overwriting_is_refused_before_anything_is_begun() -> None:
    with pytest.raises(OptionError, match=r"mode\(.overwrite.\) removes what is in the queue"):
        source().writer(ROWS, overwrite=True)
    with pytest.raises(OptionError, match=r"outputMode\(.complete.\) would remove"):
        source().streamWriter(ROWS, overwrite=True)


def test_a_stream_writer_begins_nothing_and_connects_to_nobody() -> None:
    pickle.dumps(source().streamWriter(ROWS, overwrite=False))


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(OptionError, match="did you mean"):
        source(sendr="x").streamWriter(ROWS, overwrite=False)
