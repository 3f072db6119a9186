// Cuts chunks into lines in bounded memory: of a line that is too long, only the beginning is kept.
// `Ends` finds the end of a line: a newline, or for CSV a newline outside of quotes.
#ifndef TIDEGATE_SRC_LOGS_LINES_H_
#define TIDEGATE_SRC_LOGS_LINES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidegate::logs {

inline constexpr size_t kLongestLine = size_t{1} << 20;
// How much of a skipped line is kept for messages.
inline constexpr size_t kShownBytes = 200;

struct Line {
  std::string_view text;  // without its newline
  int64_t number = 0;     // from 1; if a record has several lines, the number of the first
  int64_t lines = 1;
  bool too_long = false;  // `text` is its beginning
};

// Ends a line at each newline.
class NewlineEnds {
 public:
  // Where the line ends in `text`, which follows the text of the call before; npos if not in it.
  size_t Find(std::string_view text) { return text.find('\n'); }
  int64_t InnerNewlines() const { return 0; }
  void Reset() {}
};

template <typename Ends>
class LineSplitter {
 public:
  explicit LineSplitter(Ends ends = Ends(), size_t longest = kLongestLine)
      : ends_(ends), longest_(longest) {}

  // Calls on(Line) for each line that `chunk` ends.
  template <typename OnLine>
  void Feed(std::string_view chunk, const OnLine& on) {
    while (!chunk.empty()) {
      if (skipping_) {
        SkipTo(&chunk, on);
        continue;
      }
      const size_t end = ends_.Find(chunk);
      const size_t more = std::min(end, chunk.size());
      if (kept_.size() + more > longest_) {
        // The newline that was found may lie within quotes: the next one ends the skipped line.
        const size_t taken = longest_ - kept_.size();
        kept_.append(chunk.substr(0, std::min(taken, kShownBytes)));
        kept_.resize(std::min(kept_.size(), kShownBytes));
        inner_ =
            ends_.InnerNewlines() - std::count(chunk.begin() + static_cast<ptrdiff_t>(taken),
                                               chunk.begin() + static_cast<ptrdiff_t>(more), '\n');
        chunk.remove_prefix(taken);
        skipping_ = true;
      } else if (end == std::string_view::npos) {
        kept_.append(chunk);
        return;
      } else if (kept_.empty()) {
        Give(chunk.substr(0, end), on);
        chunk.remove_prefix(end + 1);
      } else {
        kept_.append(chunk.substr(0, end));
        Give(kept_, on);
        chunk.remove_prefix(end + 1);
      }
    }
  }

  // Ends a file, whose last line may lack its newline. The lines of the next file are counted from
  // 1 again.
  template <typename OnLine>
  void End(const OnLine& on) {
    if (skipping_) {
      GiveSkipped(on);
    } else if (!kept_.empty()) {
      Give(kept_, on);
    }
    number_ = 1;
  }

  // Removes and returns the beginning of a line that has not ended; empty if there is none.
  std::string TakeUnfinished() {
    std::string unfinished = kept_.substr(0, kShownBytes);
    kept_.clear();
    ends_.Reset();
    skipping_ = false;
    return unfinished;
  }

  int64_t number() const { return number_; }

 private:
  template <typename OnLine>
  void Give(std::string_view text, const OnLine& on) {
    const int64_t lines = 1 + ends_.InnerNewlines();
    on(Line{text, number_, lines, false});
    number_ += lines;
    ends_.Reset();
    kept_.clear();
  }

  template <typename OnLine>
  void GiveSkipped(const OnLine& on) {
    const int64_t lines = 1 + inner_;
    on(Line{kept_, number_, lines, true});
    number_ += lines;
    skipping_ = false;
    ends_.Reset();
    kept_.clear();
    kept_.shrink_to_fit();
  }

  template <typename OnLine>
  void SkipTo(std::string_view* chunk, const OnLine& on) {
    const size_t end = chunk->find('\n');
    if (end == std::string_view::npos) {
      *chunk = {};
      return;
    }
    GiveSkipped(on);
    chunk->remove_prefix(end + 1);
  }

  Ends ends_;
  size_t longest_;
  std::string kept_;  // the beginning of a line that has not ended
  int64_t number_ = 1;
  int64_t inner_ = 0;  // newlines within the skipped line
  bool skipping_ = false;
};

}  // namespace tidegate::logs

#endif  // TIDEGATE_SRC_LOGS_LINES_H_
