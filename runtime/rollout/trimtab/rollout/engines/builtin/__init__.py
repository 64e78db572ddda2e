"""The built-in torch engine: SGLang's HTTP surface for small models, on the CPU or a GPU."""
