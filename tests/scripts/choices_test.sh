#!/usr/bin/env bash
# Configuring says which presets and precisions there are: choices_test.sh CMAKE COMPILER
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cmake=${1:?usage: choices_test.sh CMAKE COMPILER}
compiler=${2:?usage: choices_test.sh CMAKE COMPILER}
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/octavo"
cp -R "$root"/{CMakeLists.txt,cmake,examples,include} "$scratch/octavo/"

failures=0
fail() {
  echo "FAILED: $*" >&2
  cat "$scratch/log" >&2
  failures=$((failures + 1))
}
configure() {
  "$cmake" -S "$scratch/octavo" -B "$scratch/build" -DCMAKE_CXX_COMPILER="$compiler" -DOCTAVO_CUDA=OFF \
    -DOCTAVO_BUILD_TESTS=OFF -DOCTAVO_BUILD_BENCHMARKS=OFF "$@" >"$scratch/log" 2>&1
}
# refused TEXT ARGUMENT...: configuring fails, and says TEXT, in lines of any length
refused() {
  local text=$1
  shift
  configure "$@" && fail "configured with $*"
  tr -s ' \n' ' ' <"$scratch/log" | grep -qF -- "$text" || fail "it does not say: $text"
}

refused "CLI11 is missing: run scripts/install-dependencies run, install the package libcli11-dev, or pass" \
  -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
rm -r "$scratch/build"
refused "The preset 'lama_tiny' is not known: choose llama_tiny, llama3_small, llama3_1b, llama3_8b, llama3_70b, mistral_7b, mixtral_8x7b, qwen2_5_0_5b, qwen2_5_7b, qwen3_0_6b, qwen3_30b_a3b, qwen3_8b, gemma3_270m, gemma3_1b, gpt2_tiny, gpt2_124m, gpt2_1558m, or add it" \
  '-DOCTAVO_PRESETS=llama_tiny;lama_tiny'
refused "The precision 'bf17' is not known: choose fp32, bf16," -DOCTAVO_PRESETS=llama_tiny \
  -DOCTAVO_PRECISIONS=bf17
configure '-DOCTAVO_PRESETS=llama_tiny;llama3_70b' '-DOCTAVO_PRECISIONS=bf16' || fail "presets of the library"
own='Layerwise<First<2, Bf16>, Fp8Recipe<DelayedScaling<16, AmaxReduction::most_recent, Margin{1}>>>'
configure -DOCTAVO_PRESETS=llama_tiny "-DOCTAVO_PRECISIONS=bf16;$own" "-DOCTAVO_LORA=llama_tiny:$own" \
  "-DOCTAVO_TENSOR_PARALLEL=llama_tiny:$own:2" || fail "a precision that is a type"
cat "$scratch"/build/examples/train_llama/llama_tiny.type-*.cpp >"$scratch/log"
[[ $(grep -cF " add<$own>();" "$scratch/log") -eq 2 ]] || fail "a type is not the precision"
grep -qF " add<octavo::Lora<$own>>();" "$scratch/log" || fail "a type is not that of adapters"
[[ $(grep -cF ".precision = \"$own\"" "$scratch/log") -eq 3 ]] || fail "a type is not its own name"
refused 'The precision '"'\"Bf16\"'"' is not known' '-DOCTAVO_PRECISIONS="Bf16"' -DOCTAVO_LORA= -DOCTAVO_TENSOR_PARALLEL=
configure -DOCTAVO_PRECISIONS=bf16 || fail "a precision that is a name"
refused "OCTAVO_TENSOR_PARALLEL has 'llama_tiny:2': write PRESET:PRECISION:DEGREE" \
  -DOCTAVO_TENSOR_PARALLEL=llama_tiny:2
refused "has 'llama3_8b:bf16:2', but its preset or precision is none that the trainer offers" \
  -DOCTAVO_PRESETS=llama_tiny '-DOCTAVO_TENSOR_PARALLEL=llama_tiny:bf16:2;llama3_8b:bf16:2'
configure -DOCTAVO_TENSOR_PARALLEL= || fail "no model that ranks share"
refused "OCTAVO_LORA has 'llama_tiny': write PRESET:PRECISION" -DOCTAVO_LORA=llama_tiny
refused "has 'llama3_8b:bf16', but its preset or precision is none that the trainer offers" \
  -DOCTAVO_PRESETS=llama_tiny -DOCTAVO_LORA=llama3_8b:bf16
refused "OCTAVO_LORA has 'gpt2_tiny:bf16', but a GPT-2 has no adapters" '-DOCTAVO_PRESETS=llama_tiny;gpt2_tiny' \
  -DOCTAVO_LORA=gpt2_tiny:bf16
configure -DOCTAVO_LORA= -DOCTAVO_PRESETS=llama_tiny || fail "no adapters"
refused "OCTAVO_REDUCE has 'bf16': choose of stored, fp32 and e4m3" -DOCTAVO_REDUCE=bf16
configure '-DOCTAVO_REDUCE=stored' || fail "gradients as they are stored"
refused "OCTAVO_MODELS has 'mine': write NAME:FOLDER" -DOCTAVO_MODELS=mine
refused "$scratch/none does not exist" -DOCTAVO_MODELS="mine:$scratch/none"
refused "there is a preset llama_tiny: choose another name" -DOCTAVO_MODELS="llama_tiny:$scratch/none"

# optimised TARGET FLAG: a target is compiled so
optimised() {
  grep "CMakeFiles/$1\.dir/" "$scratch/build/compile_commands.json" >"$scratch/log"
  grep -q -- " $2 " "$scratch/log" || fail "$1 is not compiled with $2"
}
tiny=(-DCMAKE_BUILD_TYPE=Release -DOCTAVO_MODELS= -DOCTAVO_PRESETS=llama_tiny -DCMAKE_EXPORT_COMPILE_COMMANDS=ON)
configure "${tiny[@]}" || fail "no choice of optimisation"
# fast TARGET: a target is compiled as models are: of g++ alone a flag says it
fast() {
  if "$compiler" --version | grep -q 'Free Software Foundation'; then optimised "$1" -ftree-vectorize; fi
}
for target in octavo_trainer octavo_program_models doctor; do fast "$target"; done
for target in plan_memory compare_runs; do optimised "$target" -Og; done
configure "${tiny[@]}" -DOCTAVO_OPTIMISATION=quiet || fail "little optimisation"
optimised octavo_trainer -Og
optimised doctor -Og
for target in octavo_program_models octavo_program_inferences prepare_data; do
  fast "$target"
  grep "CMakeFiles/$target\.dir/" "$scratch/build/compile_commands.json" | grep -q -- ' -Og ' && fail "$target is not fast"
done
configure "${tiny[@]}" -DOCTAVO_TRAIN_FIRST=llama_tiny:bf16 || fail "a trainer that is built first"
fast octavo_first_model
grep -rqE 'llama_tiny\.bf16\.cpp' "$scratch/build/examples/CMakeFiles/octavo_program_models.dir" &&
  fail "the first model is compiled twice"
configure "${tiny[@]}" "-DOCTAVO_PRECISIONS=bf16;$own" "-DOCTAVO_TRAIN_FIRST=llama_tiny:$own" ||
  fail "a trainer that is built first, in a precision that is a type"
fast octavo_first_model
refused "OCTAVO_TRAIN_FIRST has 'llama_tiny': write PRESET:PRECISION" -DOCTAVO_TRAIN_FIRST=llama_tiny
refused "The precision 'bf17' is not known: choose fp32, bf16," -DOCTAVO_TRAIN_FIRST=llama_tiny:bf17
configure "${tiny[@]}" -DOCTAVO_PRECISIONS=bf16 -DOCTAVO_TRAIN_FIRST= || fail "no trainer that is built first"
configure "${tiny[@]}" '-DOCTAVO_OPTIMISATION=-O2 -g1' || fail "flags"
for target in octavo_trainer octavo_program_models; do
  optimised "$target" -O2
  optimised "$target" -g1
done
configure "${tiny[@]}" -DOCTAVO_OPTIMISATION=quick || fail "what is the default"

mkdir "$scratch/mine"
# config_refused TEXT FROM TO: of a configuration with FROM replaced
config_refused() {
  sed "s/$2/$3/" "$root/tests/golden/hugging_face/llama_scaled.5.json" >"$scratch/mine/config.json"
  refused "octavo_add_model: $scratch/mine/config.json$1" -DOCTAVO_MODELS="mine:$scratch/mine"
}
config_refused ": rope_type is longrope, which" '"llama3"' '"longrope"'
config_refused ": model_type is phi3, which" '"llama"' '"phi3"'
config_refused ": hidden_act is gelu, which" '"silu"' '"gelu"'
config_refused ": attention_bias is ON, which" '"attention_bias": false' '"attention_bias": true'
config_refused ": partial_rotary_factor is 0.5, which" '"attention_bias": false' '"partial_rotary_factor": 0.5'
config_refused ": rope_parameters.partial_rotary_factor is 0.5, which" '"factor"' '"partial_rotary_factor": 0.5, "factor"'
config_refused ": hidden_size is missing" '"hidden_size"' '"hidden"'
config_refused ": hidden_act must be a number or a word" '"silu"' '"}; int injected = f(); {"'
config_refused ": num_key_value_heads is missing, and its default in transformers, 8, does not divide" \
  '"llama"' '"mistral"/; s/"num_key_value_heads"/"other"'
config_refused " is not valid JSON" '"hidden_size"' '"hidden'
cp "$root/tests/golden/hugging_face/llama_scaled.5.json" "$scratch/mine/config.json"
configure -DOCTAVO_MODELS="mine:$scratch/mine" || fail "a model of a Hugging Face folder"
"$compiler" -std=c++20 -fsyntax-only -I"$root/include" -I"$root/examples" -I"$scratch/build/examples/mine_include" \
  "$scratch/build/examples/plan_memory/known_shapes.cpp" || fail "plan_memory with a model of a Hugging Face folder"
configure -DOCTAVO_MODELS= || fail "no model of a folder"
cat >>"$scratch/octavo/include/octavo/models/llama_config.hpp" <<'EOF'
namespace octavo {
inline constexpr LlamaConfig own_model{.name = "own_model", .layers = 2};
}
EOF
configure -DOCTAVO_PRESETS=own_model || fail "a preset of one's own"
[[ $failures -eq 0 ]] || exit 1
echo "choices: OK"
