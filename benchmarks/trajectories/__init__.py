"""The parts of `python -m benchmarks.dataflow`: payloads, a job's processes, raw JetStream, TransferQueue, ledgers."""
