"""What runs in the sandbox beside a program, with nothing but the standard library. It is sent there as it is."""
