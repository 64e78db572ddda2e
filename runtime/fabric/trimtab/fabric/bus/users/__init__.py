"""NATS users without a list of users in the server: keys, signed tokens, and the files that clients dial with."""
