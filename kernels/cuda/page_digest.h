// Digests pages in device memory as page_digest() does on the host (computron/base/digest.h), and has the device decide
// what follows: a page that is wrong is copied again by a kernel, judged again, and told to the host where it stays
// wrong. So nothing waits for the host, and what is enqueued behind finds the page right, or never reaches a result.
//
//   digest_pieces -- judge_page -- copy_again (*) -- [decode_blocks (*)] -- digest_pieces (*) -- judge_page again
//
// (*) does nothing where PageVerdict::wrong is 0. All of one stream, one page at a time.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace computron::kernels::cuda {

// What a stream knows of its page under way, and of all pages so far. In device memory; all zero at first.
struct PageVerdict {
  int refused;             // the decoder has refused this copy of the page (DecodeCall::refused)
  int wrong;               // the first copy was, and a second one is under way
  int first_refused;       // of a wrong page's first copy
  std::uint64_t digest;    // of a wrong page's first copy
  std::uint64_t verified;  // pages that were right, be it the second time
  std::uint64_t copied_again, bytes_again;
};

// What the host is told, in host memory.
struct VerifiedPages {
  std::uint64_t verified, copied_again, bytes_again;  // as above
  std::uint64_t lost;                                 // 0, or the first page that was wrong twice: LostPage
};

// VerifiedPages::lost in parts. It is written at once, so that nobody reads a half.
struct LostPage {
  static constexpr std::uint64_t kSame = std::uint64_t{1} << 32, kUndecoded = std::uint64_t{1} << 33;

  explicit LostPage(std::uint64_t lost)
      : number(static_cast<int>(lost & 0x7fffffff)), same((lost & kSame) != 0), undecoded((lost & kUndecoded) != 0) {}

  int number;
  bool same;       // both copies were the same, as far as is known
  bool undecoded;  // the second one could not be decoded
};

// Digests of a page's pieces.
struct DigestCall {
  const std::byte* page;  // aligned to 16 bytes
  std::size_t bytes;
  std::uint64_t* pieces;         // [ceil(bytes / kDigestPieceBytes)], aligned to 16 bytes
  const int* only_if = nullptr;  // nothing is done where it points to 0
};
// A warp takes a piece.
void digest_pieces(CUstream_st* stream, const DigestCall& call);

// Whether the page that has these pieces is the right one.
struct JudgeCall {
  const std::uint64_t* pieces;
  std::size_t count;       // of pieces
  std::uint64_t expected;  // page_digest()
  bool again;              // of the second copy, which has crossed the link in `link_bytes`
  std::size_t link_bytes;
  int number;  // of the page, more than 0
  PageVerdict* verdict;
  VerifiedPages* told;
};
// One thread block.
void judge_page(CUstream_st* stream, const JudgeCall& call);

// Copies host memory that kernels can read. Both ends are aligned to 16 bytes.
struct CopyAgainCall {
  const std::byte* from;  // as kernels find it
  std::byte* to;
  std::size_t bytes;
  const int* only_if;  // nothing is done where it points to 0
};
void copy_again(CUstream_st* stream, const CopyAgainCall& call);

}  // namespace computron::kernels::cuda
