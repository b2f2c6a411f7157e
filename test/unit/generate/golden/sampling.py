#!/usr/bin/env python3
"""Writes sampling.txt: distributions over tokens as transformers' processors of scores leave them.

    sampling.py > sampling.txt

A case has four lines: the settings (temperature, top_k, top_p, min_p, repetition_penalty), the scores, the tokens before,
and the tokens that may be drawn with their probabilities. Made with transformers 5.24.0 and torch 2.15.0.
"""

import random

import torch
from transformers import generation as g

random.seed(7)
torch.manual_seed(7)
for case in range(60):
    size = random.choice([5, 17, 40])
    scores = torch.round(torch.randn(1, size) * 3, decimals=3)
    before = [random.randrange(size) for _ in range(random.choice([1, 4, 30]))]
    temperature, top_k = random.choice([0.3, 1.0, 1.7]), random.choice([0, 1, 3, 10, 100])
    top_p, min_p, penalty = random.choice([1.0, 0.9, 0.5, 0.05]), random.choice([0.0, 0.02, 0.3]), random.choice([1.0, 1.2, 0.8])
    processors = g.LogitsProcessorList([g.RepetitionPenaltyLogitsProcessor(penalty), g.TemperatureLogitsWarper(temperature)])
    if top_k:
        processors.append(g.TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(g.TopPLogitsWarper(top_p))
    if min_p:
        processors.append(g.MinPLogitsWarper(min_p))
    chances = processors(torch.tensor([before]), scores.clone()).softmax(-1)[0]
    print(temperature, top_k, top_p, min_p, penalty)
    print(*(f"{score:.3f}" for score in scores[0].tolist()))
    print(*before)
    print(*(f"{token}:{chance:.7g}" for token, chance in enumerate(chances.tolist()) if chance > 0))
