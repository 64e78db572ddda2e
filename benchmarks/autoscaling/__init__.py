"""A discrete-event simulation of a job whose fleet is resized by the operator's own decisions."""
