"""One pod on the node: its life, its status, its ports and what it refers to."""
