"""The oracle's rules on model.freeze: what it may name, and what it excludes."""

import re

KINDS = "embedding positions head qkv latent projection feed_forward experts shared_experts shared_gate router " \
    "prediction norm qk_norm bias sink adapter_in adapter_out magnitude".split()


def frozen_entry(text, layers):
    """Whether the text names parameters: layers[.A[-B]][.kind], mtp[.kind], base[.kind], or a kind."""
    place, _, of_place = text.partition(".")
    if place in ("mtp", "base"):
        return of_place in KINDS or text == place
    found = re.fullmatch(r"layers(?:\.(\d+)(?:-(\d+))?)?(?:\.(\w+))?", text)
    if not found:
        return text in KINDS
    first, last, kind = found.groups()
    last = int(first if last is None else last) if first is not None else 0
    return int(first or 0) <= last < layers and (kind is None or kind in KINDS)


RULES = {
    "freeze": lambda f: f.has("model.freeze") and f.has("model.num_layers") and not all(
        frozen_entry(entry, f["model.num_layers"]) for entry in f["model.freeze"]),
    "keep-frozen-needs-memory": lambda f: f["ddp.keep_frozen"] == "if_fits" and f.has("model.freeze") and
    not f.has("cluster.memory") and f["cluster.gpu"] in (None, "host"),
}
