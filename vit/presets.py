"""Options that belong together: those that suit a data set, and the presets of ``vit.train``."""

from typing import Any

# What suits a data set, where the command line does not say otherwise: digits are not to be mirrored.
BY_DATA: dict[str, dict[str, Any]] = {
    "digits": {
        "size": "micro",
        "drop_path": 0.1,
        "batch_size": 64,
        "augment": {"crop": 3, "flip": False, "rotate": 15.0, "scale": 0.15},
        # Half of the patches are enough at first: neighbours are much alike in pictures of 8 x 8 pixels, enlarged.
        "progressive": {"patch_drop": 0.5, "patch_drop_until": 1.0},
        "training": {
            "precision": "fp32",
            "epochs": 30,
            "learning_rate": 4e-3,
            "warmup": 0.1,
            "evaluate_every": 5,
        },
    },
}

PRESETS: dict[str, dict[str, Any]] = {
    # The setting that docs/results.md measures on two CPU cores.
    "cpu20": {"training": {"minutes": 20.0}},
    # For minutes on a CPU: 4 x 4 patches through one linear layer, nothing pretrained.
    "speedrun": {
        "progressive": {"patch_drop": 0.5},
        "training": {"minutes": 15.0},
    },
    # How Lee et al. 2021 ("Vision Transformer for Small-Size Datasets") train their plain ViT of this size, 93.6 %.
    "cifar10-300": {
        "size": "compact",
        "pooling": "class_token",
        "initialisation": "xavier",
        "whiten": False,
        "drop_path": 0.1,
        "batch_size": 128,
        "label_smoothing": 0.1,
        "augment": {
            "crop": 4,
            "flip": True,
            "policy": "autoaugment",
            "erase": 0.25,
            "mixup": 1.0,
            "cutmix": 1.0,
            "mix_probability": 0.5,
        },
        "training": {
            "epochs": 300,
            "optimizer": "adamw",
            "learning_rate": 1e-3,
            "weight_decay": 0.05,
            "warmup": 10 / 300,  # 10 epochs
            "schedule": "cosine",
        },
    },
}
