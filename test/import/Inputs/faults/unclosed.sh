#!/bin/bash
python pretrain_gpt.py --save "runs
