#!/bin/bash
# GPT-2 124M with llm.c's PyTorch script on the eight GPUs of a host, with every flag of the script.
DATA=dev/data/fineweb10B
torchrun --standalone --nproc_per_node=${GPUS:-8} train_gpt2.py \
    --input_bin "$DATA/fineweb_train_*.bin" --input_val_bin "$DATA/fineweb_val_*.bin" --output_dir pylog_gpt2_124M \
    --model d12 --batch_size 32 --sequence_length 1024 --total_batch_size 524288 \
    --num_iterations 19560 --inference_only 0 --overfit_single_batch 0 \
    --learning_rate 0.0006 --warmup_iters 700 --learning_rate_decay_frac 0.0 --weight_decay 0.1 --grad_clip 0.5 \
    --val_loss_every 250 --val_max_steps 40 --sample_every 0 \
    --dtype bfloat16 --tensorcores 1 --compile 1 --flash 1 --device cuda --zero_stage 1 --write_tensors 0
