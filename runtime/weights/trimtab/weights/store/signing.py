from trimtab.fabric.signing import *  # noqa
from trimtab.fabric.signing import SIGNATURE_BYTES, InvalidSigningKey, Signer, Verifier, WrongSignature  # noqa
