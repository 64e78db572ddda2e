"""A certificate authority: of a development control plane, and of the operator's own webhook."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_FOR = datetime.timedelta(days=3650)
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
"""Who the API server is when it asks a node for logs."""


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A certificate and its private key, PEM-encoded."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[Path, Path]:
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.touch(mode=0o600)
        key.write_bytes(self.key)
        return certificate, key


class CertificateAuthority:
    """Signs certificates; `now` is passed in, and validity starts an hour before it for clocks that are behind."""

    def __init__(self, pair: KeyPair, *, now: datetime.datetime, valid_for: datetime.timedelta = _VALID_FOR) -> None:
        self.pair = pair
        self._now = now
        self._valid_for = valid_for
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    @classmethod
    def create(
        cls, *, now: datetime.datetime, valid_for: datetime.timedelta = _VALID_FOR, name: str = "trimtab-embedded-ca"
    ) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(user=name, groups=())
        certificate = (
            _builder(subject=subject, issuer=subject, public_key=key.public_key(), now=now, valid_for=valid_for)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_signs_certificates(), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(_pair(certificate, key), now=now, valid_for=valid_for)

    def server(self, address: str, *, user: str = "kube-apiserver", groups: tuple[str, ...] = ()) -> KeyPair:
        """For an address on this machine, or a name."""
        names: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.DNSName("kubernetes.default.svc")]
        try:
            names.insert(0, x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            names = [x509.DNSName(address)]
        return self._sign(
            _name(user=user, groups=groups),
            usage=ExtendedKeyUsageOID.SERVER_AUTH,
            names=x509.SubjectAlternativeName(names),
        )

    def client(self, *, user: str, groups: tuple[str, ...]) -> KeyPair:
        return self._sign(_name(user=user, groups=groups), usage=ExtendedKeyUsageOID.CLIENT_AUTH)

    def _sign(
        self, subject: x509.Name, *, usage: x509.ObjectIdentifier, names: x509.SubjectAlternativeName | None = None
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            subject=subject,
            issuer=self._certificate.subject,
            public_key=key.public_key(),
            now=self._now,
            valid_for=self._valid_for,
        ).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        # Python 3.13 and newer do not accept certificates without it.
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return _pair(builder.sign(self._key, hashes.SHA256()), key)


def service_account_key() -> bytes:
    """The private key that signs service-account tokens."""
    return _private_pem(ec.generate_private_key(ec.SECP256R1()))


def _signs_certificates() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    valid_for: datetime.timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + valid_for)
    )


def _name(*, user: str, groups: tuple[str, ...]) -> x509.Name:
    """Kubernetes reads the user from the common name and the groups from the organisations."""
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, user),
        ]
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(certificate=certificate.public_bytes(serialization.Encoding.PEM), key=_private_pem(key))


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
