"""Checks a job's streams against what must never happen, with nothing but the streams: no sample lost, none trained
twice, none trained too stale. It shares no state with the ledger it audits.
"""
