"""`python -m clients.pipeline run FILE.toml`: the same as `oncemq pipeline run FILE.toml`.

A file of its own because `spark-submit` is given a file: `oncemq pipeline script` prints its path.
"""

import sys

if __name__ == "__main__":
    # A file that is run puts its own folder first, where modules have names of their own.
    folder = __file__.rpartition("/")[0]
    sys.path[:] = [each for each in sys.path if each != folder]
    from clients.cli import main

    sys.exit(main(["pipeline", *sys.argv[1:]]))
