"""The delta codec: how the changes of a block of weights become bytes, and bytes changes again, bit for bit."""
