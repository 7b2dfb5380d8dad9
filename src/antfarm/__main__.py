"""`python -m antfarm` is `antc`."""

from antfarm.cli import main

if __name__ == "__main__":
    main()
