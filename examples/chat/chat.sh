#!/usr/bin/env bash
# Chats to a model that is liked, from nothing: supervised fine-tuning, a reward model from pairs, and PPO against it.
# examples/chat/chat.sh [DIRECTORY [settings of every stage …]]
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v hpcrl > /dev/null || PATH="$PWD/.venv/bin:$PATH"

seed=${SEED:-1}
work=${1:-runs/chat-$(date +%Y%m%d-%H%M%S)}
settings=(--seed "$seed" "${@:2}")

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
export_of() { ls -d "$work/$1/export/$2"/step-* | tail -n 1; }
stage() {
    hpcrl submit "examples/chat/$1.yaml" --cluster local --run-dir "$work/$1" \
        --data.train "$work/$2.jsonl" --data.evaluate "$work/$2-test.jsonl" "${@:3}" "${settings[@]}"
}

say "1. Chats, pairs and prompts; a tokenizer with a chat template; a model with random parameters"
python examples/chat/make_data.py --out "$work" --seed "$seed"

say "2. Supervised fine-tuning, until answers have their form"
stage sft chats --actor.path "$work/model"
sft=$(export_of sft actor)

say "3. A reward model, until it finds the better answer of 97 % of the pairs"
stage reward-model pairs --reward_model.path "$sft"
judge=$(export_of reward-model reward_model)

say "4. PPO against the reward model"
stage ppo prompts --actor.path "$sft" --critic.path "$judge" --reward_model.path "$judge"
hpcrl inspect "$work/ppo" --plot
