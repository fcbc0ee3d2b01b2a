// The tokenizer that programs find in a Hugging Face folder.
#include <common/tokenizer.hpp>

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.hpp"

namespace folder_tokenizer_test {

class FolderTokenizer : public support::TemporaryFolder {};

TEST_F(FolderTokenizer, PrefersJsonOverModel) {
  EXPECT_EQ(programs::tokenizer_in(folder_), "");
  EXPECT_EQ(programs::tokenizer_in(folder_ / "absent"), "");
  std::ofstream(folder_ / "tokenizer.model") << "x";
  EXPECT_EQ(programs::tokenizer_in(folder_), (folder_ / "tokenizer.model").string());
  std::ofstream(folder_ / "tokenizer.json") << "x";
  EXPECT_EQ(programs::tokenizer_in(folder_), (folder_ / "tokenizer.json").string());
}

TEST_F(FolderTokenizer, IsNotGuessedForModelsOfMoreThanBytes) {
  EXPECT_EQ(programs::tokenizer_of_model("", 256), "bytes");
  EXPECT_EQ(programs::tokenizer_of_model(folder_, 256), "bytes");
  EXPECT_THROW(programs::tokenizer_of_model("", 257), octavo::ConfigError);
  EXPECT_THROW(programs::tokenizer_of_model(folder_, 257), octavo::ConfigError);
  const std::string own = (folder_ / "tokenizer.model").string();
  std::ofstream(own) << "x";
  EXPECT_EQ(programs::tokenizer_of_model(folder_, 256), own);
  EXPECT_EQ(programs::tokenizer_of_model(folder_, 257), own);
}

TEST_F(FolderTokenizer, IsMissedInWrittenFolders) {
  const std::string lack = "the folder contains neither tokenizer.json nor tokenizer.model";
  EXPECT_EQ(programs::note_of_no_tokenizer(folder_, 256), lack + ": tokens are bytes");
  EXPECT_EQ(programs::note_of_no_tokenizer(folder_, 257),
            lack +
                "; copy that of the training data there, or pass it as --tokenizer with the folder "
                "(bytes if the data was text)");
  std::ofstream(folder_ / "tokenizer.json") << "x";
  EXPECT_EQ(programs::note_of_no_tokenizer(folder_, 257), "");
}

}  // namespace folder_tokenizer_test
