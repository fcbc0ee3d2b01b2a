/// @file
/// All headers of this folder that need no other library.
#pragma once

#include <octavo/io/appended_file.hpp>
#include <octavo/io/atomic_file.hpp>
#include <octavo/io/crc32c.hpp>
#include <octavo/io/event_file.hpp>
#include <octavo/io/file_digest.hpp>
#include <octavo/io/float_elements.hpp>
#include <octavo/io/folder.hpp>
#include <octavo/io/generation_config.hpp>
#include <octavo/io/hugging_face_config.hpp>
#include <octavo/io/hugging_face_weights.hpp>
#include <octavo/io/hugging_face_writer.hpp>
#include <octavo/io/metrics_file.hpp>
#include <octavo/io/peft_adapters.hpp>
#include <octavo/io/peft_config.hpp>
#include <octavo/io/safetensors.hpp>
#include <octavo/io/token_file_writer.hpp>
#include <octavo/io/trace_file.hpp>
#include <octavo/io/write_all.hpp>
