"""The draw from every class is scikit-learn's, without importing it."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.model_selection import train_test_split

from vit.stratified import stratified_split


# Remainders that tie, that do not, one class much rarer, and labels that skip a number.
@pytest.mark.parametrize("counts", [(7, 7, 7), (23, 11, 5), (101, 3, 2), (13, 0, 17), (5, 5, 3, 3)])
@pytest.mark.parametrize("seed", [0, 3, 2**32 - 1])
def test_it_is_the_one_of_scikit_learn(counts, seed):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(counts)), counts))
    for n_held in (4, 5, 7):
        kept, held = stratified_split(labels, n_held, seed)
        expected = train_test_split(np.arange(len(labels)), test_size=n_held, stratify=labels, random_state=seed)
        assert kept.tolist() == sorted(expected[0])
        assert held.tolist() == sorted(expected[1])


def test_holding_out_imports_no_scikit_learn():
    line = (
        "import sys, torch; from vit.splits import hold_out; hold_out(torch.arange(14) % 2, 0.3, 0, 'ab'); "
        "sys.exit('sklearn' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", line], check=True)
