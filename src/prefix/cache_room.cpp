#include "prefix/cache_room.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fcntl.h>

namespace dsv32 {
namespace {

constexpr uint64_t kMaxDefaultBytes = 256'000'000'000, kMaxDefaultFreeBytes = 10'000'000'000;
constexpr int kMaxDepth = 16;  // of directories that are counted

// Whether it is gone.
bool remove_leftover(FileSystem& fs, int directory, const std::string& name) {
  const OwnedFd file(fs, fs.open_at(directory, name, O_RDONLY));
  return file.is_open() && fs.try_lock(file.get()) == 0 && fs.unlink(directory, name) == 0;
}

// Adds what is in a directory; `folder`: its name, if it is that of a fingerprint.
void add_content(const CacheFiles& files, int directory, const std::string& folder, int depth, bool sweeps,
                 CacheContent& content) {
  FileSystem& fs = files.fs();
  std::vector<std::string> names;
  if (depth > kMaxDepth || fs.list(directory, names) != 0) return;
  for (const std::string& name : names) {
    FileInfo info;
    ++fs.n_steps_done;
    if (fs.stat_at(directory, name, info) != 0) continue;
    const bool is_written = CacheFiles::is_temporary(name) && is_own_file(info);
    if (is_written && sweeps && (depth == 0 || !folder.empty()) && remove_leftover(fs, directory, name))
      continue;
    // A file being written counts with its full length, even if its room could not be reserved.
    content.n_bytes += is_written ? std::max(info.disk_bytes, info.n_bytes) : info.disk_bytes;
    const auto page = folder.empty() ? std::nullopt : PageName::parse(name);
    if (page && is_own_file(info)) content.pages.push_back({folder, *page, info.disk_bytes, info.changed_ns});
    if (!info.is_directory) continue;
    const OwnedFd below(fs, fs.open_at(directory, name, O_RDONLY | O_DIRECTORY));
    const bool is_folder = depth == 0 && CacheFiles::is_folder(name) && files.open_folder(name).is_open();
    if (below.is_open()) add_content(files, below.get(), is_folder ? name : "", depth + 1, sweeps, content);
  }
}

// The pages as trees, in the order in which they leave; without `kept` and the pages ahead of it.
std::vector<const StoredPage*> leaving_order(const std::vector<StoredPage>& pages, const PageHash& kept) {
  struct Node {
    const StoredPage* page;
    Node* parent = nullptr;
    size_t n_children = 0;
  };
  std::vector<Node> nodes;
  std::map<std::pair<std::string, PageHash>, std::vector<Node*>> behind;  // by folder and parent
  for (const StoredPage& page : pages) nodes.push_back({&page});
  for (Node& node : nodes) behind[{node.page->folder, node.page->name.parent}].push_back(&node);
  std::vector<Node*> reached;
  const auto reach = [&](const std::string& folder, const PageHash& hash, Node* parent) {
    const auto children = behind.extract({folder, hash});
    if (children.empty()) return;
    if (parent) parent->n_children = children.mapped().size();
    for (Node* child : children.mapped()) child->parent = parent, reached.push_back(child);
  };
  for (const StoredPage& page : pages) reach(page.folder, {}, nullptr);
  for (size_t i = 0; i < reached.size(); ++i)
    reach(reached[i]->page->folder, reached[i]->page->name.own, reached[i]);

  std::vector<const StoredPage*> order;
  for (const auto& [parent, orphans] : behind)
    for (const Node* orphan : orphans) order.push_back(orphan->page);
  std::set<std::pair<int64_t, Node*>> leaves;
  const auto add_if_leaf = [&](Node* node) {
    if (node->n_children == 0 && node->page->name.own != kept) leaves.insert({node->page->used_ns, node});
  };
  for (Node* node : reached) add_if_leaf(node);
  while (!leaves.empty()) {
    Node* const leaf = leaves.extract(leaves.begin()).value().second;
    order.push_back(leaf->page);
    if (leaf->parent) --leaf->parent->n_children, add_if_leaf(leaf->parent);
  }
  return order;
}

}  // namespace

CacheContent content_of(const CacheFiles& files, bool sweeps) {
  CacheContent content;
  add_content(files, files.top(), {}, 0, sweeps, content);
  return content;
}

bool remove_page(const CacheFiles& files, const StoredPage& page) {
  const OwnedFd folder = files.open_folder(page.folder);
  const int result = folder.is_open() ? files.fs().unlink(folder.get(), page.name.file()) : folder.error();
  return result == 0 || result == -ENOENT;
}

uint64_t make_room(const CacheFiles& files, const CacheLimits& limits, uint64_t n_bytes, const PageHash& kept,
                   const std::function<void(const StoredPage&)>& removed) {
  const auto number = [](uint64_t n) { return static_cast<int64_t>(std::min<uint64_t>(n, INT64_MAX / 4)); };
  const CacheContent content = content_of(files, true);
  SpaceInfo space;
  const bool has_space = files.fs().space(files.top(), space) == 0;
  // The cache's own bytes count as free; otherwise the default would shrink with each start.
  const int64_t most = number(
      limits.max_bytes.value_or(std::min((space.free_bytes + content.n_bytes) / 10, kMaxDefaultBytes)));
  const int64_t left_free =
      number(limits.min_free_bytes.value_or(std::min(space.total_bytes / 20, kMaxDefaultFreeBytes)));
  int64_t room = most - number(content.n_bytes);
  if (has_space) room = std::min(room, number(space.free_bytes) - left_free);
  if (room < number(n_bytes) && number(n_bytes) <= most)  // what can never fit removes nothing
    for (const StoredPage* page : leaving_order(content.pages, kept)) {
      if (!remove_page(files, *page)) continue;
      if (removed) removed(*page);
      room += number(page->n_bytes);
      if (room >= number(n_bytes)) break;
    }
  return static_cast<uint64_t>(std::max<int64_t>(room, 0));
}

}  // namespace dsv32
