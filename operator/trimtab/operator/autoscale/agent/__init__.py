"""A language model as maintainer: it is shown one case, may look around with tools, and proposes a size."""
