"""The examples of the gallery in their order, and the parts of their pictures that are shown on the cards.

From the whole job to its parts: a file that learns and a network that goes on learning, the choice of the
weights, adapters, the loss, the rate and the penalty, other data.
"""

from pathlib import Path

from PIL import Image, ImageOps

PICTURES = Path(__file__).resolve().parent / "auto_examples" / "images"
SIZE = (400, 280)

#: Left, top, right and bottom of the part, as shares of the picture: a whole one is too small on a card.
EXAMPLES = {
    "plot_onnx_in_onnx_out": (0, 0, 0.89, 1),
    "plot_digits_drift": (0, 0, 1, 1),
    "plot_changed_weights": (0.42, 0, 0.665, 0.418),
    "plot_calibration": (0, 0, 0.56, 1),
    "plot_frozen_backbone": (0.34, 0, 1, 1),
    "plot_sentence_adapters": (0.63, 0, 1, 1),
    "plot_quantized_adapter": (0, 0, 0.4, 1),
    "plot_quantile_bands": (0, 0, 0.63, 1),
    "plot_business_loss": (0.478, 0, 1, 0.5),
    "plot_distillation": (0, 0, 0.538, 1),
    "plot_rates_and_schedules": (0, 0, 0.78, 1),
    "plot_grid_search": (0, 0, 0.89, 1),
    "plot_segmentation": (0, 0.11, 0.515, 0.875),
    "plot_text_l1": (0.49, 0, 0.9, 1),
    "plot_stream_drift": (0, 0.235, 1, 1),
    "plot_memory_map": (0.49, 0, 1, 1),
}


def crop_thumbnails(app):
    """Put the parts on the cards of the examples that were run."""
    for name, shares in EXAMPLES.items():
        picture = PICTURES / f"sphx_glr_{name}_001.png"
        if picture.exists():
            with Image.open(picture) as whole:
                part = whole.crop([share * side for share, side in zip(shares, 2 * whole.size, strict=True)])
            ImageOps.pad(part.convert("RGB"), SIZE, color="white").save(
                PICTURES / "thumb" / f"sphx_glr_{name}_thumb.png"
            )
