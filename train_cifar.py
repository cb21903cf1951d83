"""Trains a Vision Transformer on CIFAR-10, or on other pictures: ``python -m vit.train`` by its given name.

    python train_cifar.py --data digits      no download, about a minute on two CPU cores
    python train_cifar.py                    CIFAR-10, downloaded if it is not in --data-dir
    python train_cifar.py --help             every option with its default

What to expect of each command stands in docs/results.md.
"""

from vit.train import main

if __name__ == "__main__":
    main()
