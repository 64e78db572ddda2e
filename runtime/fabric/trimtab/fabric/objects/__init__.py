"""The object storage side of the fabric: conditional writes, large transfers and checksums over S3."""
