#!/usr/bin/env bash
# What `make demo` runs: data, tokenizer and a model from nothing; supervised fine-tuning until the model adds some sums
# right; then PPO. Both are runs like any other, submitted as on a cluster. SEED=2 examples/addition/demo.sh runs another.
# examples/addition/demo.sh [DIRECTORY [settings of PPO …]]
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v hpcrl > /dev/null || PATH="$PWD/.venv/bin:$PATH"

seed=${SEED:-1}
work=${1:-runs/demo-$(date +%Y%m%d-%H%M%S)}
data=(--data.train "$work/train.jsonl" --data.evaluate "$work/test.jsonl" --seed "$seed")

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. Data, tokenizer and a model with random parameters"
python examples/addition/make_data.py --out "$work" --seed "$seed"

say "2. Supervised fine-tuning, until 36 % of the held-out sums are right"
hpcrl submit examples/addition/sft.yaml --cluster local --run-dir "$work/sft" "${data[@]}" --actor.path "$work/model"

say "3. PPO: actor, critic, reference and an exact-match reward"
model=$(ls -d "$work"/sft/export/actor/step-* | tail -n 1)
hpcrl submit examples/addition/ppo.yaml --cluster local --run-dir "$work/ppo" "${data[@]}" \
    --actor.path "$model" --critic.path "$model" "${@:2}"

say "The curves"
hpcrl inspect "$work/ppo" --plot
cat <<END

And now
  source .venv/bin/activate
  kill -9 anything while the demo runs (a worker, the master, all of it), then: hpcrl resume RUN
  SEED=2 make demo
  hpcrl submit examples/addition/ppo.yaml --help
END
