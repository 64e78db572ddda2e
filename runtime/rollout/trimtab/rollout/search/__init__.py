"""What a policy searches: passages of a corpus on disk, or behind an endpoint of the user's."""
