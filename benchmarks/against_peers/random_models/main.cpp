// Computes logits, a loss and gradients in FP32 with models that octavo_add_model read from
// folders.
//
//   random_models FOLDER...
//
// A folder is named after its model, and contains config.json, model.safetensors and integers of 32
// bits: shape.i32 (sequences, tokens of each), tokens.i32 and targets.i32. The program adds
// logits.f32, loss.f32, gradients.f32 in the order of gradients.txt (name, rows, columns, whether
// the file of weights has the transpose), and written/, the folder as Octavo writes it. It prints
// the name of each folder, and "ok" or why it failed.
#include "random_models/compute.hpp"

#include <exception>
#include <iostream>

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path folder = argv[i];
    std::string result = "no such model is compiled in";
    for (const random_models::Model& model : random_models::models()) {
      if (model.name != folder.filename().string()) continue;
      try {
        model.compute(folder);
        result = "ok";
      } catch (const std::exception& error) {
        result = error.what();
      }
    }
    std::cout << folder.filename().string() << ' ' << result << '\n' << std::flush;
  }
  return std::cout ? 0 : 1;
}
