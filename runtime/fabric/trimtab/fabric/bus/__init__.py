"""The NATS side of the fabric: connections, JetStream streams, key-value buckets and request/reply."""
