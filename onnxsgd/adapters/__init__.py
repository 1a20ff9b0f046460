"""Adapters: small trained matrices beside frozen weights."""

from __future__ import annotations

from onnxsgd.adapters._lora import LoRA

__all__ = ["LoRA"]
