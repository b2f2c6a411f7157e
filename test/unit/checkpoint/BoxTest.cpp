// Boxes of tensors: their places, intersections and pieces.
#include "runtime/checkpoint/Box.h"

#include <gtest/gtest.h>

#include "test/unit/checkpoint/TestFiles.h"

namespace shardc::checkpoint {
namespace {

TEST(Box, WholeTensorsAndRows) {
  EXPECT_EQ(Box::whole({6, 4}), (Box{{0, 0}, {6, 4}}));
  EXPECT_EQ(Box::whole({}), Box());
  EXPECT_EQ(Box::rows({6, 4}, 2, 3), (Box{{2, 0}, {3, 4}}));
  EXPECT_EQ(boxText(Box::rows({6, 4}, 2, 3)), "[2, 0] of shape [3, 4]");
}

TEST(Box, LiesInsideOrReachesOut) {
  const Shape tensor = {6, 4};
  EXPECT_TRUE(Box::whole(tensor).isInside(tensor));
  EXPECT_TRUE((Box{{6, 0}, {0, 4}}).isInside(tensor)) << "no element, behind the last row";
  EXPECT_TRUE(Box().isInside({})) << "a scalar";
  for (const Box &box : {Box{{3, 0}, {4, 4}}, Box{{0, 1}, {6, 4}}, Box{{-1, 0}, {2, 4}},
                         Box{{0, 0}, {-1, 4}}, Box{{0}, {6}}, Box{{0, 0}, {6}}, Box{{0}, {6, 4}},
                         Box{{int64_t{1} << 62, 0}, {int64_t{1} << 62, 4}}})
    EXPECT_FALSE(box.isInside(tensor)) << boxText(box);
}

TEST(Box, WhatTwoHaveInCommon) {
  const Box a = {{1, 1}, {3, 2}};
  EXPECT_EQ(intersect(a, {{0, 2}, {2, 5}}), (Box{{1, 2}, {1, 1}}));
  EXPECT_EQ(intersect(a, a), a);
  EXPECT_EQ(intersect({}, {}), Box()) << "the one element of a scalar";
  for (const Box &other : {Box{{4, 1}, {1, 2}}, Box{{1, 3}, {3, 1}}, Box{{2, 1}, {0, 2}}}) {
    EXPECT_FALSE(overlap(a, other)) << boxText(other);
    EXPECT_EQ(intersect(other, a), std::nullopt) << boxText(other);
  }
  EXPECT_EQ(distance(Shape{1, 1}, Shape{3, 2}, Shape{4, 1}), 9);
}

std::vector<Box> piecesOf(const Box &box, int64_t bytesMax) {
  std::vector<Box> pieces;
  EXPECT_OK(forEachPiece(box, Element::F32, bytesMax, [&](const Box &piece) {
    pieces.push_back(piece);
    return Status::ok();
  }));
  return pieces;
}

TEST(Box, IsCutBetweenRows) {
  const Box box = {{2, 0}, {5, 4}}; // rows of 16 bytes
  EXPECT_EQ(piecesOf(box, 80), std::vector<Box>{box});
  EXPECT_EQ(piecesOf(box, 79), (std::vector<Box>{{{2, 0}, {4, 4}}, {{6, 0}, {1, 4}}}));
  EXPECT_EQ(piecesOf(box, 47),
            (std::vector<Box>{{{2, 0}, {2, 4}}, {{4, 0}, {2, 4}}, {{6, 0}, {1, 4}}}));
  EXPECT_EQ(piecesOf(box, 1).size(), 5u) << "a row is never cut";
  EXPECT_EQ(piecesOf({}, 1), std::vector<Box>(1)) << "a scalar";
  EXPECT_EQ(piecesOf(Box::whole({0, 4}), 1), std::vector<Box>{Box::whole({0, 4})});
}

TEST(Box, ThePieceThatFailsIsTheLast) {
  int visited = 0;
  Status status = forEachPiece(Box::whole({3, 4}), Element::F32, 16, [&](const Box &piece) {
    ++visited;
    return piece.offset[0] == 1 ? Status(StatusCode::Io, "full") : Status::ok();
  });
  EXPECT_EQ(status.code(), StatusCode::Io);
  EXPECT_EQ(visited, 2);
}

TEST(Box, PaddingIsCleared) {
  auto cleared = [](const Box &box, int64_t rows) {
    std::vector<float> values(6, 1);
    Box there = clearPadding(box, rows, Element::F32, values.data());
    return std::pair(there, values);
  };
  const Box box = {{2, 0}, {3, 2}};
  using Values = std::vector<float>;
  EXPECT_EQ(cleared(box, 5), std::pair(box, Values(6, 1)));
  EXPECT_EQ(cleared(box, 4), std::pair(Box{{2, 0}, {2, 2}}, Values{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(cleared(box, 1), std::pair(Box{{1, 0}, {0, 2}}, Values(6, 0)));
}

} // namespace
} // namespace shardc::checkpoint
