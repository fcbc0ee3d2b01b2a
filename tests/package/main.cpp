#include <octavo/octavo.hpp>

#include <iostream>

int main() {
  std::cout << "the largest E4M3 is " << octavo::FormatTraits<octavo::E4M3>::max << '\n';
}
