// Limits of a plan, whose text may be untrusted. Parser and verifier check counts, names, sizes and
// offsets, so the sum or product of two such numbers fits 64 bits. Only the parser checks the
// limits of text, sources and strings. Attributes need no limit on their count, since an op has
// each at most once; the op's shape rule checks their values.
#pragma once

#include <cstdint>

namespace shardc::plan::limits {

inline constexpr int64_t kTextBytesMax = int64_t{1} << 30;
inline constexpr int64_t kNameBytesMax = 1024;
inline constexpr int64_t kStringBytesMax = int64_t{1} << 16;
inline constexpr int64_t kVariablesMax = 1 << 14; ///< environment variables in the job
inline constexpr int64_t kJobListMax = 1 << 14;
inline constexpr int64_t kMeshAxesMax = 16; ///< a set of axes is stored as a bit set
inline constexpr int64_t kWorldSizeMax = 1 << 20;
inline constexpr int64_t kGroupsMax = 256;
inline constexpr int64_t kChannelsMax = 256;
inline constexpr int64_t kMultiprocessorsMax = 1 << 16;
inline constexpr int64_t kClassesMax = 64;
inline constexpr int64_t kTurnsMax = 4;
inline constexpr int64_t kUnitsMax = 1 << 16;
inline constexpr int64_t kBlocksMax = 1 << 17;
inline constexpr int64_t kParamsMax = 1 << 20;
inline constexpr int64_t kLocsMax = 1 << 20;
inline constexpr int64_t kSourcesMax = 1 << 14;
/// Bytes of one source, of a packed specification and of its text.
inline constexpr int64_t kSourceBytesMax = int64_t{1} << 26;
inline constexpr int64_t kRolesMax = 256;
inline constexpr int64_t kCellsMax = 1 << 20;
inline constexpr int64_t kSegmentsMax = 1024;
inline constexpr int64_t kCellsBySegmentsMax = int64_t{1} << 26; ///< cells times segments
inline constexpr int64_t kOpsMax = 1 << 20;                      ///< ops of one segment
inline constexpr int64_t kOperandsMax = 1 << 16;                 ///< operands of an op
inline constexpr int64_t kResultsMax = 16;                       ///< results of one op
inline constexpr int64_t kTiesMax = 32;                          ///< ties of one op
inline constexpr int64_t kWaitsMax = 1 << 12;                    ///< waits of one op
inline constexpr int64_t kNestingMax = 8;                        ///< depth of nested program nodes
inline constexpr int64_t kProgramNodesMax = 1 << 12;
inline constexpr int64_t kCountMax = int64_t{1} << 40; ///< repetitions in a program
inline constexpr int64_t kSlotsMax = 1 << 12;          ///< slots of a ring
inline constexpr int64_t kMicrobatchesMax = 1 << 20;   ///< if the program numbers microbatches
/// Repetitions of all predicates of a plan together.
inline constexpr int64_t kRepetitionsMax = 1 << 22;
inline constexpr int64_t kGraphNodesMax = 1 << 18;      ///< in all graphs of a rank: about 1 GiB
inline constexpr int64_t kExtentMax = int64_t{1} << 40; ///< extent of one dimension
inline constexpr int64_t kBytesMax = int64_t{1} << 42;  ///< bytes of a value, an arena, an offset
inline constexpr int64_t kElementsMax = kBytesMax; ///< elements of a value, a block or a parameter

} // namespace shardc::plan::limits
