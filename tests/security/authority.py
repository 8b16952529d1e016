"""A certificate authority for tests, which also issues what no good authority would."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from idl.access import Tls

CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH
HERE: tuple[x509.GeneralName, ...] = (
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.DNSName("localhost"),
)

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, in files that only their owner can read."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its files lie in a folder of their own."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / "authority.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(name, name, self._key, 0).add_extension(constraints, critical=True)
        signed = builder.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        names: Sequence[x509.GeneralName],
        usage: Sequence[x509.ObjectIdentifier],
        from_day: int = 0,
    ) -> Identity:
        """An identity with these alternative names, valid for two days around `from_day`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(name, self._name, key, from_day)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        )
        made = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.touch(mode=0o600)
        made.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    def server(self, name: str = "server") -> Identity:
        """The certificate of a server on this machine."""
        return self.issue(name, HERE, (SERVER,))

    def client(self, name: str) -> Identity:
        """The certificate of a client, which names it as a principal."""
        return self.issue(name, (x509.UniformResourceIdentifier(f"mq:{name}"),), (CLIENT,))

    def tls(self, identity: Identity | None = None) -> Tls:
        """The settings of one side that trusts this authority."""
        if identity is None:
            return Tls(self.certificate)
        return Tls(self.certificate, identity.certificate, identity.key)

    def careless_client(self, identity: Identity | None = None) -> ssl.SSLContext:
        """A context for an attacker: it trusts this authority and may present any certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cafile=self.certificate)
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context


def careless_server(identity: Identity) -> ssl.SSLContext:
    """A context for an impostor: it presents any certificate, and asks for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    return context


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, from_day: int
) -> x509.CertificateBuilder:
    middle = datetime.datetime.now(datetime.UTC) + from_day * _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(_distinguished(name))
        .issuer_name(_distinguished(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(middle - _DAY)
        .not_valid_after(middle + _DAY)
    )


def _distinguished(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
