# Writes a C++ file that defines std::string_view constants with the bytes of files. Run as
#   cmake -DOUTPUT=x.cpp -DHEADER=cli/watch/watch_assets.h -DFILES="name=path;name=path" -P EmbedFiles.cmake
set(text "// Written by cmake/EmbedFiles.cmake.\n#include \"${HEADER}\"\n\nnamespace nibble::assets {\n")
foreach(entry ${FILES})
  string(REGEX MATCH "^([^=]+)=(.*)$" unused "${entry}")
  set(name ${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(APPEND text "static const unsigned char ${name}_bytes[] = {${bytes}};\n"
    "const std::string_view ${name}(reinterpret_cast<const char*>(${name}_bytes), sizeof ${name}_bytes);\n")
endforeach()
string(APPEND text "}  // namespace nibble::assets\n")
file(WRITE "${OUTPUT}" "${text}")
