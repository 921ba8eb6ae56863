// Exact drawings of small schedules. Start and end of every cell were checked by hand against the schedule's rules.
#include "parallel/schedule/draw.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <sstream>
#include <string>

namespace te::parallel {
namespace {

std::string picture(const ScheduleShape& shape, const Costs& costs = {}, const DrawOptions& options = {}) {
  return "\n" + draw(make_schedule(shape), shape, costs, options);
}

TEST(Draw, Gpipe) {
  EXPECT_EQ(picture({ScheduleKind::gpipe, 2, 1, 3}), R"(
gpipe: stages 2, microbatches 3
F0 forward of microbatch 0, B0 its backward; dots: idle; times in forward passes of a stage

time 0 to 12
stage 0 |F0 F1 F2 .........B0--- B1--- B2--- |
stage 1 |...F0 F1 F2 B0--- B1--- B2--- ......|

bubble fraction 25.0%: the step takes 12, the work of a stage 9
peak memory, in activations of a full stage for one microbatch:
stage 0  3
stage 1  3
)");
}

TEST(Draw, OneForwardOneBackward) {
  EXPECT_EQ(picture({ScheduleKind::one_f_one_b, 3, 1, 4}), R"(
1f1b: stages 3, microbatches 4
F0 forward of microbatch 0, B0 its backward; dots: idle; times in forward passes of a stage

time 0 to 18
stage 0 |F0 F1 F2 ............B0--- F3 B1--- ...B2--- ...B3--- |
stage 1 |...F0 F1 ......B0--- F2 B1--- F3 B2--- ...B3--- ......|
stage 2 |......F0 B0--- F1 B1--- F2 B2--- F3 B3--- ............|

bubble fraction 33.3%: the step takes 18, the work of a stage 12
peak memory, in activations of a full stage for one microbatch:
stage 0  3
stage 1  2
stage 2  1
)");
}

TEST(Draw, Interleaved) {
  EXPECT_EQ(picture({ScheduleKind::interleaved, 2, 2, 2}), R"(
interleaved: stages 2, chunks of a stage 2, microbatches 2
F0 forward of microbatch 0, B0 its backward; F0a on the stage's first chunk, F0b on the next; dots: idle; times in forward passes of a stage

time 0 to 7.5
stage 0 |F0a F1a F0b F1b ........B0b---- ....B1b---- B0a---- B1a---- |
stage 1 |....F0a F1a F0b B0b---- F1b B1b---- B0a---- B1a---- ........|

bubble fraction 20.0%: the step takes 7.5, the work of a stage 6
peak memory, in activations of a full stage for one microbatch:
stage 0  2 = (2 + 2) / 2
stage 1  1.5 = (2 + 1) / 2
)");
}

TEST(Draw, ZeroBubble) {
  EXPECT_EQ(picture({ScheduleKind::zero_bubble, 3, 1, 4}), R"(
zero_bubble: stages 3, microbatches 4
F0 forward of microbatch 0, B0 its backward to the inputs, W0 its weight gradients; dots: idle; times in forward passes of a stage

time 0 to 14
stage 0 |F0 F1 F2 ......B0 W0 F3 B1 W1 B2 W2 B3 W3 |
stage 1 |...F0 F1 ...B0 F2 B1 W0 F3 B2 W1 B3 W2 W3 |
stage 2 |......F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3 |

bubble fraction 14.3%: the step takes 14, the work of a stage 12
peak memory, in activations of a full stage for one microbatch:
stage 0  3, plus operands of W for 1
stage 1  3, plus operands of W for 2
stage 2  3, plus operands of W for 3
)");
}

TEST(Draw, InterleavedZeroBubble) {
  EXPECT_EQ(picture({ScheduleKind::zero_bubble, 2, 2, 4}), R"(
zero_bubble: stages 2, chunks of a stage 2, microbatches 4
F0 forward of microbatch 0, B0 its backward to the inputs, W0 its weight gradients; F0a on the stage's first chunk, F0b on the next; dots: idle; times in forward passes of a stage

time 0 to 12.5
stage 0 |F0a F1a F0b F1b ....B0b W0b F2a B1b W1b F3a B0a W0a F2b B1a W1a F3b B2b W2b B3b W3b B2a W2a B3a W3a |
stage 1 |....F0a F1a F0b B0b F1b B1b W0b F2a B0a W1b F3a B1a W0a F2b B2b W1a F3b B3b W2b B2a W3b B3a W2a W3a |

bubble fraction 4.0%: the step takes 12.5, the work of a stage 12
peak memory, in activations of a full stage for one microbatch:
stage 0  2 = 4 / 2, plus operands of W for 0.5
stage 1  2 = 4 / 2, plus operands of W for 1
)");
}

TEST(Draw, LongSchedulesHaveBlocksAndSkipTheMiddle) {
  DrawOptions options;
  options.width = 9 + 5 * 3 + 1;  // five passes of three columns
  EXPECT_EQ(picture({ScheduleKind::gpipe, 1, 1, 2}, {}, options), R"(
gpipe: stages 1, microbatches 2
F0 forward of microbatch 0, B0 its backward; dots: idle; times in forward passes of a stage

time 0 to 5
stage 0 |F0 B0--- F1 B1-|

time 5 to 6
stage 0 |-- |

bubble fraction 0.0%: the step takes 6, the work of a stage 6
peak memory, in activations of a full stage for one microbatch:
stage 0  1
)");
  options.blocks = 2;
  EXPECT_EQ(picture({ScheduleKind::gpipe, 1, 1, 6}, {}, options), R"(
gpipe: stages 1, microbatches 6
F0 forward of microbatch 0, B0 its backward; dots: idle; times in forward passes of a stage

time 0 to 5
stage 0 |F0 B0--- F1 B1-|

(time 5 to 15 is skipped)

time 15 to 18
stage 0 |F5 B5--- |

bubble fraction 0.0%: the step takes 18, the work of a stage 18
peak memory, in activations of a full stage for one microbatch:
stage 0  1
)");
}

TEST(Draw, CommunicationIsIdleTime) {
  Costs costs;
  costs.forward = 10;
  costs.backward = 20;
  costs.communication = 10;
  EXPECT_EQ(picture({ScheduleKind::one_f_one_b, 2, 1, 2}, costs), R"(
1f1b: stages 2, microbatches 2
F0 forward of microbatch 0, B0 its backward; dots: idle; times in forward passes of a stage

time 0 to 11
stage 0 |F0 F1 ............B0--- ...B1--- |
stage 1 |......F0 B0--- F1 B1--- .........|

bubble fraction 45.5%: the step takes 11, the work of a stage 6
peak memory, in activations of a full stage for one microbatch:
stage 0  2
stage 1  1
)");
}

TEST(Draw, LargeSchedulesStayReadable) {
  for (const ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble}) {
    const ScheduleShape shape = {kind, 8, 1, 32};
    const std::string text = draw(make_schedule(shape), shape);
    std::istringstream lines(text);
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) EXPECT_LE(line.size(), 150U) << line;
    EXPECT_LE(count, 60);
    for (const char* label : {"F0- ", "F31 ", "B0-", "B31-"}) {
      if (kind == ScheduleKind::zero_bubble && label[3] == '-') continue;
      EXPECT_NE(text.find(label), std::string::npos) << label;
    }
    EXPECT_EQ(text.find("is skipped"), std::string::npos);
  }
}

TEST(Draw, CompleteLongScheduleWithEnoughBlocks) {
  const ScheduleShape shape = {ScheduleKind::interleaved, 4, 3, 16};
  DrawOptions options;
  EXPECT_NE(draw(make_schedule(shape), shape, {}, options).find("is skipped"), std::string::npos);
  options.blocks = 1000;
  options.width = 100000;  // one block, so that no label is broken
  const std::string text = draw(make_schedule(shape), shape, {}, options);
  for (const char pass : {'F', 'B'}) {
    for (int microbatch = 0; microbatch < 16; ++microbatch) {
      for (const char chunk : {'a', 'b', 'c'}) {
        const std::string label = fmt::format("{}{}{}", pass, microbatch, chunk);
        int count = 0;
        const size_t picture_start = text.find("\nstage 0");
        for (size_t at = text.find(label, picture_start); at != std::string::npos;
             at = text.find(label, at + 1))
          ++count;
        EXPECT_EQ(count, 4) << label;  // once on every stage
      }
    }
  }
}

}  // namespace
}  // namespace te::parallel
