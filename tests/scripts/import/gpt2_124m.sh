#!/bin/bash
# GPT-2 124M with llm.c on the eight GPUs of a host, started again after a failure.
make train_gpt2cu USE_CUDNN=1
export NCCL_NET_GDR_LEVEL=2
FOLDER=log_gpt2_124M
LAST="$FOLDER/DONE_00019560"
DATA=dev/data/fineweb10B

while true; do
    if [ -f "$LAST" ]; then
        echo "$LAST exists"
        break
    fi
    mpirun -np 8 --bind-to none ./train_gpt2cu \
        -i "$DATA/fineweb_train_*.bin" -j "$DATA/fineweb_val_*.bin" -o $FOLDER -e "d12" \
        -b 64 -t 1024 -d 524288 -x 19560 \
        -l 0.0006 -q 0.0 -u 700 -c 0.1 -sl 6 -sg 6 \
        -v 250 -s 20000 -g 144 -h 1 \
        -r 0 -z 1 -n 5000 -nk 3 -nm 10000 -y 1 -ge 1 -pi mpi
    sleep 1
done
