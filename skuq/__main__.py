"""``python -m skuq``: run the command ``skuq`` when its script is not on the path."""

from skuq.cli import main

if __name__ == "__main__":
    main(prog_name="python -m skuq")
