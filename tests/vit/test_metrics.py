"""The figures of an evaluation and its corruptions, against scikit-learn, scipy, and sums by hand."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.vit.helpers import some_pictures
from vit.corruptions import CONTRAST, CORRUPTIONS, GAUSSIAN_NOISE, JPEG, corrupt
from vit.metrics import calibration, classification_figures, most_mistaken

# ---- figures


def test_calibration_of_five_pictures_by_hand():
    found = calibration(torch.tensor([0.90, 0.88, 0.30, 0.34, 1.0]), torch.tensor([True, False, True, True, True]))
    # Of 15 bins, 0.88 and 0.90 lie in the 14th, 0.30 in the 5th, 0.34 in the 6th, 1.0 in the last.
    assert found.counts.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 1]
    assert found.accuracy[13].item() == 0.5
    assert found.confidence[13].item() == pytest.approx(0.89, abs=1e-6)
    assert found.error == pytest.approx((2 * abs(0.5 - 0.89) + 0.70 + 0.66 + 0.0) / 5, abs=1e-6)


def test_the_edge_of_a_bin_belongs_to_the_lower_one():
    found = calibration(torch.tensor([0.25, 0.5, 0.75, 0.0]), torch.ones(4, dtype=torch.bool), n_bins=4)
    assert found.counts.tolist() == [2, 1, 1, 0]


def test_figures_are_scikit_learns():
    from sklearn.metrics import accuracy_score, classification_report, log_loss, top_k_accuracy_score

    logits = torch.randn(101, 7)
    labels = torch.randint(0, 5, (101,))  # two classes have no picture, but may be predicted
    names = [f"class {i}" for i in range(7)]
    figures = classification_figures(logits, labels, names)
    predicted = logits.argmax(dim=1)
    assert predicted.max() >= 5
    report: Any = classification_report(labels, predicted, labels=range(5), target_names=names[:5], output_dict=True)
    assert set(figures["per_class"]) == set(names[:5])
    for name in names[:5]:
        row, expected = figures["per_class"][name], report[name]
        assert row["pictures"] == expected["support"]
        assert [row[k] for k in ("precision", "recall", "f1")] == pytest.approx(
            [expected[k] for k in ("precision", "recall", "f1-score")]
        )
    assert figures["macro_f1"] == pytest.approx(report["macro avg"]["f1-score"])
    assert figures["macro_precision"] == pytest.approx(report["macro avg"]["precision"])
    assert figures["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    assert figures["top_k"] == 5
    assert figures["top_k_accuracy"] == pytest.approx(
        top_k_accuracy_score(labels, logits.double(), k=5, labels=range(7))
    )
    assert figures["loss"] == pytest.approx(log_loss(labels, logits.double().softmax(dim=1), labels=range(7)))
    assert json.loads(json.dumps(figures)) == figures


def test_a_class_that_is_never_predicted_has_precision_0_without_a_warning():
    figures = classification_figures(torch.tensor([[3.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), ["a", "b"])
    assert figures["per_class"]["b"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "pictures": 1}
    assert figures["top_k"] == 2


def test_most_mistaken_counts_pairs():
    labels, predicted = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2]), torch.tensor([1, 1, 0, 0, 1, 2, 1, 1])
    found = most_mistaken(labels, predicted, "abc", most=2)
    assert found == [
        {"true": "a", "predicted": "b", "pictures": 2},
        {"true": "c", "predicted": "b", "pictures": 2},
    ]
    assert most_mistaken(labels, labels, "abc") == []


# ---- corruptions


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_is_the_same_each_time_and_worse_when_severer(name):
    images = some_pictures()
    before, state = images.clone(), torch.random.get_rng_state()
    once, again = corrupt(name, 3, images, 7), corrupt(name, 3, images, 7)
    assert once.dtype == torch.uint8
    assert once.shape == images.shape
    assert torch.equal(once, again)
    assert torch.equal(images, before)
    assert torch.equal(torch.random.get_rng_state(), state)
    changes = [(corrupt(name, s, images).float() - images.float()).square().mean() for s in (1, 3, 5)]
    assert 0 < changes[0] < changes[1] < changes[2]
    assert torch.equal(corrupt(name, 3, images, 8), once) == (name != "gaussian_noise")


def test_noise_has_the_deviation_that_is_stated():
    grey = torch.full((3, 64, 64, 3), 128, dtype=torch.uint8)
    noise = corrupt("gaussian_noise", 3, grey).double() / 255
    assert noise.std().item() == pytest.approx(GAUSSIAN_NOISE[3], rel=0.03)


def test_contrast_draws_towards_the_mean_grey():
    image = some_pictures(1)
    grey = (image[0].double() @ torch.tensor([0.2989, 0.587, 0.114], dtype=torch.float64)).mean()
    expected = CONTRAST[5] * image[0].double() + (1 - CONTRAST[5]) * grey
    np.testing.assert_allclose(corrupt("contrast", 5, image)[0], expected, atol=1.5)


def test_blur_is_scipys():
    from scipy.ndimage import gaussian_filter

    image = some_pictures(1, 32, 32)
    expected = gaussian_filter(image[0].double().numpy(), sigma=(1, 1, 0), mode="mirror", truncate=3.0)
    np.testing.assert_allclose(corrupt("gaussian_blur", 5, image)[0], expected, atol=1.0)
    corrupt("gaussian_blur", 5, some_pictures(1, 1, 40))  # narrower than the kernel


def test_jpeg_is_that_of_a_file(tmp_path):
    image = some_pictures(1, 32, 32)
    Image.fromarray(image[0].numpy()).save(tmp_path / "a.jpg", quality=JPEG[3])
    with Image.open(tmp_path / "a.jpg") as decoded:
        expected = np.asarray(decoded).astype(int)
    np.testing.assert_array_equal(corrupt("jpeg", 3, image)[0], expected)
