"""`python -m nnrp_sched` is the command `nnrp-sched`."""

from nnrp_sched.cli import main

if __name__ == "__main__":
    main()
