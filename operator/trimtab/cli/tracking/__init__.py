"""The curves of a run in the trackers that people look at, written from its history by processes of their own."""
