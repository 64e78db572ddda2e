"""One RLJob on one machine: the same plans as in a cluster, carried out with processes of this machine."""
