"""The testbed of live proofs: a local mesh, TCP relays that can be cut, client processes and CPU stress."""
