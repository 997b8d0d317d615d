"""`python -m imgmlp`: the same as the command `imgmlp`."""

from imgmlp.cli import main

if __name__ == "__main__":
    main()
