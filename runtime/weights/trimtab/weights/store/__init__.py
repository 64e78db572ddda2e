"""The store side of weight transfer: what lies in the bucket, who may change it, and when it may go."""
