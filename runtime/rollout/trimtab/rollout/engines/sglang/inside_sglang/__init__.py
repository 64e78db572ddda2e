"""What SGLang's own processes import. This folder is their path entry, so it holds nothing that could shadow theirs."""
