/// @file
/// From text to batches of tokens.
#pragma once

#include <octavo/data/byte_tokenizer.hpp>
#include <octavo/data/chat_stream.hpp>
#include <octavo/data/chat_template.hpp>
#include <octavo/data/chat_tokens.hpp>
#include <octavo/data/chats.hpp>
#include <octavo/data/data_files.hpp>
#include <octavo/data/documents.hpp>
#include <octavo/data/read_ahead.hpp>
#include <octavo/data/text.hpp>
#include <octavo/data/token_file.hpp>
#include <octavo/data/token_stream.hpp>
#include <octavo/data/tokenizer.hpp>
#include <octavo/data/validation_set.hpp>
