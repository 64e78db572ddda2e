"""The parts of `python -m benchmarks.dataflow` and `benchmarks.stages`: payloads, a job's processes, raw JetStream,
TransferQueue, ledgers.
"""
